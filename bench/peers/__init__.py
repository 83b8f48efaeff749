"""EMS beside the systems that its users would pick instead, on the same machine and in turns with them."""
