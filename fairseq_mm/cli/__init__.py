"""The ``fairseq-mm`` command: one module per subcommand, imported only if the user calls it."""
