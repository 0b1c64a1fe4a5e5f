#!/usr/bin/env bash
# Run a part of the first half-hour on a GPU, with what `make gpu-pack` has collected:
#   gpu/run.sh A|B|C|D|E [case=NAME ...] [minutes=8.5] [scale=toy] [out=FOLDER]
# The machine's own torch is used. What is unpacked stays in gpu/env for the next call.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
wheels=(gpu/wheels/*.whl)
if [ -e "${wheels[0]}" ]; then
  site='import sysconfig; print(sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sep="\n")'
  stamp="$(printf '%s\n' "${wheels[@]}") $("$python" -c 'import sys; print(sys.executable, sys.version)')"
  if [ "$(cat gpu/env/ready 2>/dev/null)" != "$stamp" ]; then
    rm -rf gpu/env
    "$python" -m venv --without-pip --system-site-packages gpu/env
    # Where this Python is itself an environment's, its packages are not those of the system.
    "$python" -c "$site" > "$(gpu/env/bin/python -c "$site" | head -1)/machine.pth"
    "$python" -m pip --python gpu/env/bin/python install --quiet --disable-pip-version-check \
      --no-index --no-deps "${wheels[@]}"
    printf '%s\n' "$stamp" > gpu/env/ready
  fi
  python=gpu/env/bin/python
fi
export PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$PWD/gpu/cache}"
exec "$python" -m benchmarks.gpu.drive part="$@"
