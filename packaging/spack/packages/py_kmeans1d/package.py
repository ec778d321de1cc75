# SPDX-License-Identifier: MIT
"""Spack's recipe of kmeans1d, which Spack's own repository lacks."""

from spack.package import depends_on, license, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyKmeans1d(PythonPackage):
    """Optimal k-means of numbers."""

    pypi = "kmeans1d/kmeans1d-0.5.0.tar.gz"

    license("MIT")

    version("0.5.0", sha256="a8fd0cda0f3d7a563d232f53c1f752850832ad920f4162dbc71040d647ba4091")

    depends_on("cxx", type="build")
    depends_on("py-setuptools", type="build")
