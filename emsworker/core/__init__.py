"""Pure core: data types, decisions and state, without I/O."""
