"""Real certificates, made by the openssl command."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Authority:
    """A CA in a folder.

    Args:
        folder: where its files are.
        name: of the CA.
    """

    folder: Path
    name: str

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.pem"

    @classmethod
    def make(cls, folder: Path, name: str) -> "Authority":
        """A new one, good for a day."""
        made = cls(folder, name)
        _openssl(
            "req", "-x509", *_KEY, "-days", "1", "-subj", f"/CN={name}", "-out", made.certificate,
            "-keyout", folder / f"{name}.key",
        )  # fmt: skip
        return made

    def sign(self, name: str, hosts: str) -> tuple[Path, Path]:
        """A certificate for ``hosts``, such as ``IP:127.0.0.1``, and its key."""
        request, certificate, key = (self.folder / f"{name}.{kind}" for kind in ("csr", "pem", "key"))
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={hosts}\n")
        _openssl("req", *_KEY, "-subj", f"/CN={name}", "-out", request, "-keyout", key)
        _openssl(
            "x509", "-req", "-days", "1", "-in", request, "-CA", self.certificate, "-CAkey",
            self.folder / f"{self.name}.key", "-CAcreateserial", "-extfile", extensions, "-out", certificate,
        )  # fmt: skip
        return certificate, key


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=30)
