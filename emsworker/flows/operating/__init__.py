"""Operating flows: commands, pages, metrics, services of the beat, and what they do."""
