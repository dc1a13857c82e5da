#!/usr/bin/env bash
# An environment of its own for each peer, under .venvs:
#
#   benchmarks/peers/setup.sh [ellice] [nice] [dice]
#
# Versions are those of constraints.txt or named here. A peer itself is installed without what it asks for: NICE wants
# numpy before 2, and DiCE the large build of XGBoost; both run without. What cannot be installed is written down in
# .venvs/PEER.failed and told in the table.
set -u
here="$(cd "$(dirname "$0")" && pwd)"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT="$here/../../constraints.txt"
mkdir -p "$here/.venvs"
failures=0

prepare() { # NAME PEER PACKAGES...
  local place="$here/.venvs/$1" peer="$2"
  shift 2
  rm -rf "$place" "$place.failed"
  echo "Preparing $peer"
  if ! { "${PYTHON:-python3}" -m venv "$place" \
    && "$place/bin/pip" install --quiet "$@" \
    && "$place/bin/pip" install --quiet --no-deps "$peer"; } 2>"$place.log"; then
    grep -v '^WARNING' "$place.log" | tail -n 1 >"$place.failed"
    echo "  failed: $(cat "$place.failed")"
    failures=1
  fi
  rm -f "$place.log"
}

[ $# -gt 0 ] || set -- ellice nice dice
for peer in "$@"; do
  case "$peer" in
    ellice) prepare ellice ellice==0.1.4 torch numpy pandas scikit-learn pyyaml tqdm==4.70.1 ;;
    nice) prepare nice NICEx==0.2.3 numpy pandas scipy scikit-learn ;;
    dice) prepare dice dice-ml==0.12 torch numpy pandas scikit-learn jsonschema==4.26.0 tqdm==4.70.1 raiutils==0.4.2 ;;
    *) echo "There is no peer '$peer': ellice, nice or dice."; failures=1 ;;
  esac
done
exit $failures
