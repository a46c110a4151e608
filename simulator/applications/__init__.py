"""What runs on the simulated fleet: real recordings, and variants that say that they are."""

from .application_table import Application, load_applications, real_application_profiles
from .numbered import numbered_applications
from .variant import Variant, derive

__all__ = [
    "Application",
    "Variant",
    "derive",
    "load_applications",
    "numbered_applications",
    "real_application_profiles",
]
