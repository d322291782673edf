"""What pyproject.toml cannot say: a wheel holds the workflow beside the code, where fedshift.io.shipped finds it."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = ("Snakefile", "workflow", "config", "envs", "profiles")


class BuildWithWorkflow(build_py):
    """Copy the files of the repository that an installation needs to fedshift/shipped, as files of the package."""

    def _get_data_files(self) -> list[tuple[str, str, str, list[str]]]:
        """Return the data files of all packages: package, source folder, target folder and names."""
        groups = super()._get_data_files()
        if self.editable_mode:  # then the repository itself is read
            return groups
        target = Path(self.build_lib, "fedshift", "shipped")
        files = [file for name in SHIPPED for file in (Path(name), *sorted(Path(name).rglob("*"))) if file.is_file()]
        return [*groups, ("fedshift", ".", str(target), [str(f) for f in files if "__pycache__" not in f.parts])]


setup(cmdclass={"build_py": BuildWithWorkflow})
