#!/usr/bin/env bash
# pip-audit, by hash, in an environment of its own: what it installs is no part of the product.
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=.tools/audit/.complete
if [ ! -e "$stamp" ] || [ requirements/audit.txt -nt "$stamp" ]; then
    uv=$(scripts/uv.sh)
    said=$({ "$uv" venv --quiet --clear --python '>=3.11' .tools/audit &&
        VIRTUAL_ENV="$PWD/.tools/audit" "$uv" pip sync --quiet --require-hashes requirements/audit.txt; } 2>&1) || {
        scripts/say_failed.sh "pip-audit could not be fetched, so nothing was audited" "$said"
        exit 77
    }
    touch "$stamp"
fi
exec .venv/bin/python -m scripts.audit_deps
