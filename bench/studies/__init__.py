"""How the costs of EMS behave: whether they stay flat, what a message and an idle worker cost, and how work scales."""
