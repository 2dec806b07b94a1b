# Shared by the scripts in this folder; source it.

# Seconds since the epoch at which the run began; inherited by the scripts that it calls.
export CI_RUN_START="${CI_RUN_START:-$(date +%s)}"

# say TEXT: announces a step with the time since the start of the run.
say() {
  local seconds=$(($(date +%s) - CI_RUN_START))
  printf '\n=== [%3d:%02d] %s\n' "$((seconds / 60))" "$((seconds % 60))" "$*"
}

# die TEXT: ends the run.
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# warn_loudly TEXT: a line that nobody scrolls past.
warn_loudly() {
  printf '\n%s\n!! %s\n%s\n\n' "$(printf '!%.0s' {1..100})" "$*" "$(printf '!%.0s' {1..100})" >&2
}

# snapshot SOURCE TARGET: copies what git tracks, and what it would track, of SOURCE.
snapshot() {
  mkdir -p "$2"
  (cd "$1" && git -c safe.directory='*' ls-files --cached --others --exclude-standard -z |
    while IFS= read -r -d '' path; do if [ -e "$path" ]; then printf '%s\0' "$path"; fi; done |
    tar --create --null --files-from=- --file=-) | tar --extract --directory="$2" --file=-
}
