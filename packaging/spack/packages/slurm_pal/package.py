# SPDX-License-Identifier: MIT
"""Spack's recipe of slurm-pal. A test holds it to pyproject.toml."""

import os

from spack.package import depends_on, license, python, run_after, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class SlurmPal(PythonPackage):
    """GPU placement by measured variability for stock Slurm: palsub, pal, pal-profile, pal-rebalance."""

    url = f"file://{os.getcwd()}/slurm_pal-0.2.0.tar.gz"
    manual_download = True

    license("MIT")

    version("0.2.0")

    variant("pyslurm", default=False, description="Ask Slurm by pyslurm, which must fit its release; GPL-2.0-only")
    variant("research", default=False, description="ECOS for pal simulate --replica gavel; GPL-3.0")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-click@8.1:", type=("build", "run"))
    depends_on("py-clustershell@1.9:", type=("build", "run"))
    depends_on("py-highspy@1.7:", type=("build", "run"))
    depends_on("py-jinja2@3.1:", type=("build", "run"))
    depends_on("py-kmeans1d@0.4:", type=("build", "run"))
    depends_on("py-matplotlib@3.6:", type=("build", "run"))
    depends_on("py-numpy@1.24:", type=("build", "run"))
    depends_on("py-nvidia-ml-py@12:", type=("build", "run"))
    depends_on("py-pandas@2.0:", type=("build", "run"))
    depends_on("py-prometheus-client@0.16:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-scipy@1.10:", type=("build", "run"))
    depends_on("py-pyslurm", type=("build", "run"), when="+pyslurm")
    depends_on("py-ecos@2.0.14:", type=("build", "run"), when="+research")

    @run_after("install")
    def make_private_folder(self) -> None:
        """The programs obey no PYTHONPATH, so they must know where their dependencies are."""
        python("-m", "slurm_pal.admin.private_folder", self.prefix)
