"""Keys under which options leave their values in click's context, for the commands below them and for the output."""

URL, REDIS_URL, TRACEBACK, SERVER = "ems.url", "ems.redis_url", "ems.traceback", "ems.server"
WIDE, NO_COLOR, INVOKED = "ems.wide", "ems.no_color", "ems.invoked"
