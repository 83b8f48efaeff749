"""The page of the dashboard."""

from acme.notes import latest

from emsworker.web.page import View


def _show(visit):
    return visit.render("acme/notes.html", notes=visit.shared.database.call(latest))


def pages():
    return [View("/notes", _show, title="Notes")]
