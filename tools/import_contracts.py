"""Contracts of the import linter that it does not bring itself; `pyproject.toml` names them."""

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class PrivateModules(Contract):
    """A module named `_x` is imported only from inside the package that it stands in.

    Everything else goes through that package's `__init__`. `packages` are the roots to look through.
    """

    packages = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find every import of a private module from outside its package."""
        _ = verbose
        reached = [
            (importer, module)
            for module in sorted(graph.modules)
            if _is_private(module, tuple(self.packages))
            for importer in sorted(graph.find_modules_that_directly_import(module))
            if not _is_inside(importer, _home(module))
        ]
        return ContractCheck(kept=not reached, metadata={"reached": reached})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line for each import that reaches in."""
        for importer, module in check.metadata["reached"]:
            output.print_error(
                f"{importer} imports {module}: import it from {_home(module)}", bold=False
            )


class OneDoor(Contract):
    """The modules of `package` import nothing of `other` but `door`, which is a package of it."""

    package = fields.StringField()
    other = fields.StringField()
    door = fields.StringField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Find every import of another part."""
        _ = verbose
        modules = [name for name in sorted(graph.modules) if _is_inside(name, str(self.package))]
        reached = [
            (importer, module)
            for importer in modules
            for module in sorted(graph.find_modules_directly_imported_by(importer))
            if _is_inside(module, str(self.other)) and module != self.door
        ]
        return ContractCheck(kept=bool(modules) and not reached, metadata={"reached": reached})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one line for each import that goes elsewhere."""
        for importer, module in check.metadata["reached"]:
            output.print_error(f"{importer} imports {module}: import it from {self.door}", bold=False)


def _is_private(module: str, packages: tuple[str, ...]) -> bool:
    parts = module.split(".")
    return parts[0] in packages and any(part.startswith("_") for part in parts[1:])


def _home(module: str) -> str:
    """Return the package in which the outermost private part of a module's name stands."""
    parts = module.split(".")
    first = next(i for i, part in enumerate(parts) if part.startswith("_"))
    return ".".join(parts[:first])


def _is_inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
