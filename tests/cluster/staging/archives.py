"""Small wheels and sources, made here, beside a lock that has their hashes."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

SETUP = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{name}"
version = "1.0"
"""
EXTENSION = """from setuptools import Extension, setup
setup(ext_modules=[Extension("{name}_c", ["{name}.c"])])
"""
MODULE = """#include <Python.h>
static PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}_c"}};
PyObject *PyInit_{name}_c(void) {{ return PyModule_Create(&module); }}
"""


def write_wheel(
    folder: Path, name: str, version: str = "1.0", tag: str = "py3-none-any"
) -> Path:
    """Write a wheel with one module, as pip takes it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", "VALUE = 1\n")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return file


def write_source(folder: Path, name: str, *, compiled: bool = False) -> Path:
    """Write a source distribution, of Python alone or with a module in C."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"pyproject.toml": SETUP.format(name=name), f"{name}.py": "VALUE = 1\n"}
    if compiled:
        files["setup.py"] = EXTENSION.format(name=name)
        files[f"{name}.c"] = MODULE.format(name=name)
    file = folder / f"{name}-1.0.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return file


def entry(file: Path, marker: str = "") -> str:
    """Return the lines of a lock that pin this archive."""
    name, version = file.name.removesuffix(".tar.gz").split("-")[:2]
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    condition = f" ; {marker}" if marker else ""
    return f"{name}=={version}{condition} \\\n    --hash=sha256:{digest}\n"
