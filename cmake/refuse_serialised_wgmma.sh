#!/bin/sh
# Runs the compiler given. An error where ptxas notes (C7510 to C7519) that it waits for each wgmma before it issues the
# next: the kernel would be right, and slow.
output=$("$@" 2>&1)
status=$?
[ -z "$output" ] || printf '%s\n' "$output" >&2
case $output in
  *"wgmma.mma_async instructions are serialized"*)
    echo "error: ptxas serialises wgmma (the note above says where): set accumulators without a condition, and fence them" >&2
    exit 1
    ;;
esac
exit $status
