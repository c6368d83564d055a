#!/usr/bin/env bash
# make release: version and changelog agree, the wheel builds, installs elsewhere and answers; then what a person still has to
# decide. `twine check` runs where twine is installed. Nothing is published.
set -euo pipefail
python=$(realpath -s "$1")
cd "$(dirname "$0")/.."
fail() { echo "release: $1" >&2; exit 1; }

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
grep -qx "__version__ = \"$version\"" svr_lightning/__init__.py || fail "svr_lightning/__init__.py: not version $version"
grep -qx "version: $version" CITATION.cff || fail "CITATION.cff: not version $version"
grep -qx "## $version" CHANGELOG.md || fail "CHANGELOG.md: no version $version"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder" .
if "$python" -c "import twine" 2>/dev/null; then "$python" -m twine check --strict "$folder"/*.whl; fi
# The dependencies of this environment lie below the new one; the package itself does not.
"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --no-deps "$folder"/*.whl
site=$("$folder/venv/bin/python" -c "import site; print(site.getsitepackages()[0])")
"$python" -c "import site; print(*site.getsitepackages(), sep='\n')" > "$site/below.pth"
cd "$folder"
[[ $(venv/bin/svr --version) == *"$version"* ]] || fail "the installed command does not say $version"
answer=$(venv/bin/svr predict --config countdown_tiny --question "4 12 8 = 8" 2>/dev/null)
[[ $answer == *"answer: (12-4)+8"* ]] || fail "the installed policy does not answer as README says"
echo "release: $version builds, installs elsewhere and answers"

cd - >/dev/null
sed -n '/^## Unreleased/,/^## [0-9]/p' CHANGELOG.md | grep -q "^- " && echo "to do: CHANGELOG.md has changes under Unreleased"
grep -q "^\[project.urls\]" pyproject.toml || echo "to do: pyproject.toml has no project.urls"
"$python" -c "import twine" 2>/dev/null || echo "to do: twine is not installed"
