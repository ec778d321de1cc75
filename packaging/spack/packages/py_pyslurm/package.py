# SPDX-License-Identifier: MIT
"""Spack's recipe of pyslurm, which Spack's own repository lacks. Its version is that of its Slurm."""

from spack.package import depends_on, license, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyPyslurm(PythonPackage):
    """Slurm's library for Python."""

    pypi = "pyslurm/pyslurm-25.11.2.tar.gz"

    license("GPL-2.0-only")

    version("25.11.2", sha256="6e0e4bc639ea3177591b102b77c1dd8df55a9e411ac42ef339a4adb3908cca34")

    depends_on("c", type="build")
    depends_on("py-cython", type="build")
    depends_on("py-packaging", type="build")
    depends_on("py-setuptools", type="build")
    depends_on("slurm@25-11", type=("build", "link", "run"), when="@25.11")
