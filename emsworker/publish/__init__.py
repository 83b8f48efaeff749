"""Publishing: sends messages at once, with a transaction or for later, and cancels them."""
