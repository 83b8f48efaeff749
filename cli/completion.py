"""``ems completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from emsworker.console.options import stream_options


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@stream_options
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the shell's completion script for ems.

    \b
    bash:  echo 'eval "$(ems completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(ems completion zsh)"' >> ~/.zshrc
    fish:  ems completion fish > ~/.config/fish/completions/ems.fish
    """  # noqa: D301 - click wants the character itself
    script = get_completion_class(shell)
    assert script is not None, "the choices above are click's own"
    click.echo(script(ctx.find_root().command, {}, "ems", "_EMS_COMPLETE").source())
