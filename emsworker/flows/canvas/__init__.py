"""Canvas: chains, groups and chords of signatures, and the flow that runs them."""
