#!/usr/bin/env bash
# Make .venv-spark: PySpark with what the Leader needs, every package by hash, this project, and the
# jars of Spark's connector to Kafka. It stands apart from .venv, as Spark asks for an older pandas.
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=.venv-spark/.installed
if [ -e "$stamp" ] && [ "$stamp" -nt requirements/spark.txt ] && [ "$stamp" -nt deploy/spark/pom.xml ]; then
    exit 0
fi
uv=$(scripts/uv.sh)

attempt() {
    local said
    said=$("$@" 2>&1) || { scripts/say_failed.sh "Spark could not be installed" "$said"; exit 1; }
}

echo "Installing Spark into .venv-spark (PySpark is 456 MB, once) ..."
# The system's own Python, where it is new enough: a Leader that gave root up must be able to begin it,
# and Java to read what lies beside it.
python='>=3.11'
if /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=/usr/bin/python3
fi
[ -x .venv-spark/bin/python ] || attempt "$uv" venv --quiet --python "$python" .venv-spark
export VIRTUAL_ENV="$PWD/.venv-spark"
attempt "$uv" pip sync --quiet --require-hashes requirements/spark.txt requirements/build.txt
attempt "$uv" pip install --quiet --offline --no-deps --no-build-isolation --editable .

draft=$(mktemp -d)
trap 'rm -rf "$draft"' EXIT
cp deploy/spark/pom.xml "$draft"
attempt mvn -q -B -f "$draft/pom.xml" dependency:copy-dependencies -DoutputDirectory="$draft/jars" \
    -DincludeScope=runtime \
    -DincludeArtifactIds=spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2
rm -rf .venv-spark/jars
mv "$draft/jars" .venv-spark/jars
# A Leader that gave root up reads them as another user.
chmod -R go+rX .venv-spark
touch "$stamp"
