"""Tables of Celery applications that run on a stream: results, chords, and the last runs of ``celery beat``."""
