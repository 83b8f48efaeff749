"""The settings soft_time_limit_s and hard_time_limit_s are the limits of handlers that name none."""

from emsworker import Ems


def test_a_handler_without_limits_has_those_of_the_settings() -> None:
    app = Ems("limited", soft_time_limit_s=5.0, hard_time_limit_s=9.0)

    @app.task
    def plain() -> None: ...

    @app.subscribe("orders", group="billing", soft_time_limit_s=1.0, hard_time_limit_s=None)
    def own(message: object) -> None: ...

    assert (plain.options.soft_time_limit_s, plain.options.hard_time_limit_s) == (5.0, 9.0)
    assert (own.options.soft_time_limit_s, own.options.hard_time_limit_s) == (1.0, None)


def test_without_settings_there_is_no_limit() -> None:
    app = Ems("unlimited")

    @app.task
    def plain() -> None: ...

    assert (plain.options.soft_time_limit_s, plain.options.hard_time_limit_s) == (None, None)
