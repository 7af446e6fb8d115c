"""The original of a bundle, loaded again as the manifest says that it was asked for."""

from byoc.bundle import MANIFEST_FILE, Bundle
from byoc.errors import InputError
from byoc.model import ONLY_VARIANT, Model, Variant, make_variable, read_recorded_dimensions
from byoc.zoo import load_model


def load_recorded_model(bundle: Bundle, name: str, variant: Variant = ONLY_VARIANT) -> Model:
    """Load the original of a bundle, a path or `zoo:NAME`, at the dimensions of a variant.

    Its variable constants are inputs, as in the bundle. Raises InputError when it cannot be read, or the
    manifest does not say what was asked for.
    """
    asked = bundle.manifest.asked
    try:
        given = read_recorded_dimensions(asked, variant)
    except ValueError as error:
        raise InputError(f"{bundle.display_path}: in the manifest asked.{error}") from None
    variable = asked.get("variable") or []
    if not isinstance(variable, list) or not all(isinstance(each, str) for each in variable):
        raise InputError(f"{bundle.display_path / MANIFEST_FILE}: asked.variable is not a list of names")
    return make_variable(load_model(name, given.dims, given.shapes), variable)
