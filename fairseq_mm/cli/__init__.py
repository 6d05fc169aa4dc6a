"""The ``fairseq-mm`` command. Each subcommand is a module, which is imported when it is called."""
