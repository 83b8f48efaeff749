"""How messages get into the stream: at once, with a transaction, for later; and back out of it, cancelled."""
