"""Settings, options that are declared and checked, and addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from emsworker.core.config import SERVER_MARK as SERVER_MARK
    from emsworker.core.config import Settings as Settings
    from emsworker.core.options import LARGEST as LARGEST
    from emsworker.core.options import choice as choice
    from emsworker.core.options import flag as flag
    from emsworker.core.options import is_whole as is_whole
    from emsworker.core.options import nearest as nearest
    from emsworker.core.options import option as option
    from emsworker.core.options import option_field as option_field
    from emsworker.core.options import options_of as options_of
    from emsworker.core.options import problems_in as problems_in
    from emsworker.core.options import problems_of as problems_of
    from emsworker.core.options import raise_problems as raise_problems
    from emsworker.core.options import seconds as seconds
    from emsworker.core.options import shown as shown
    from emsworker.core.options import whole as whole
    from emsworker.core.servers import MAIN as MAIN
    from emsworker.core.servers import parse_servers as parse_servers
    from emsworker.core.settings import settings_of as settings_of
    from emsworker.core.url import UNENCODED as UNENCODED
    from emsworker.core.url import DatabaseUrl as DatabaseUrl
    from emsworker.core.url import check_signs as check_signs
    from emsworker.core.url import impatient as impatient
    from emsworker.core.url import redact as redact
    from emsworker.core.url import redact_url as redact_url
else:  # a name that is not above is an error of types, too
    __getattr__ = lazy_names(
        __name__,
        {
            "emsworker.core.config": "SERVER_MARK Settings",
            "emsworker.core.options": "LARGEST choice flag is_whole nearest option option_field options_of "
            "problems_in problems_of raise_problems seconds shown whole",
            "emsworker.core.servers": "MAIN parse_servers",
            "emsworker.core.settings": "settings_of",
            "emsworker.core.url": "DatabaseUrl UNENCODED check_signs impatient redact redact_url",
        },
    )
