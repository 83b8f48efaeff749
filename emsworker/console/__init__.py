"""The parts of a command line that all commands share: options, the stream, tables, completion."""
