"""From releases and JSON lines to data folders."""
