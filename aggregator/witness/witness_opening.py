"""Open the witness that a configuration names; the one place that knows all of them."""

from __future__ import annotations

from aggregator.party.party_config import WitnessSettings
from aggregator.party.postgresql_settings import PostgresqlSettings
from privacy.signing import SigningKey

from .port import Witness, WitnessUnavailable


def open_witness(settings: WitnessSettings, identity: SigningKey) -> Witness:
    """Make the Helper's end; it connects when it is asked first.

    Raises      WitnessUnavailable where its library is not installed; KeyFileRefused, OSError
    """
    if isinstance(settings.witness, PostgresqlSettings):
        try:
            from .postgresql import PostgresqlWitness
        except ImportError as error:
            raise WitnessUnavailable(
                "[witness.postgresql]: expected the package psycopg, found none; install "
                "pointillist[witness-postgresql]"
            ) from error
        return PostgresqlWitness(settings.witness, identity.public_bytes, settings.timeout_s)
    from .process_witness import ProcessWitness

    return ProcessWitness(settings.witness.address, settings.witness.witness_pk, identity)


def kind_of_witness(settings: WitnessSettings | None) -> str:
    """Name a witness's kind for a status."""
    if settings is None:
        return "none"
    return "postgresql" if isinstance(settings.witness, PostgresqlSettings) else "process"
