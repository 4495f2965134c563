#!/bin/sh
# Gives the demo missing, damaged and foreign files and wrong options: each must end with a status of 1 to 127,
# exactly one line on standard error and nothing on standard output.
#   check_refusals.sh PROGRAM FOLDER
set -u
demo=$1
dir=$2
good=$(dirname "$0")/data/heads.safetensors
mkdir -p "$dir"
failed=0

refused() {
  what=$1
  shift
  "$demo" "$@" >"$dir/out" 2>"$dir/err"
  status=$?
  if [ "$status" -eq 0 ] || [ "$status" -ge 128 ] || [ -s "$dir/out" ] || [ "$(wc -l <"$dir/err")" -ne 1 ]; then
    echo "not refused as it should be: $what (status $status)"
    cat "$dir/out" "$dir/err"
    failed=1
  else
    echo "refused, $what: $(cat "$dir/err")"
  fi
}

# A file of one JSON header and as many zero bytes as asked for.
make_file() {
  length=$(printf '%s' "$2" | wc -c)
  # Headers here are shorter than 512 bytes: two bytes of the length are enough.
  printf "\\$(printf '%03o' $((length % 256)))\\$(printf '%03o' $((length / 256)))\\0\\0\\0\\0\\0\\0" >"$1"
  printf '%s' "$2" >>"$1"
  head -c "$3" /dev/zero >>"$1"
}

refused "missing file" "$dir/there-is-no-such-file"
refused "folder" "$dir"
: >"$dir/empty"
refused "empty file" "$dir/empty"
echo "just some text, nothing else" >"$dir/text"
refused "text file" "$dir/text"
{ printf GGUF && head -c 100 /dev/zero; } >"$dir/gguf"
refused "GGUF file" "$dir/gguf"
head -c 4 "$good" >"$dir/cut4"
refused "cut in the header length" "$dir/cut4"
head -c 700 "$good" >"$dir/cut700"
refused "cut in the header" "$dir/cut700"
head -c 1000000 "$good" >"$dir/cut"
refused "cut in the data" "$dir/cut"
{ cat "$good" && echo more; } >"$dir/long"
refused "bytes after the end" "$dir/long"
head -c 4096 /dev/zero >"$dir/zeros"
refused "zeros" "$dir/zeros"
head -c 4096 /dev/zero | tr '\000' '\377' >"$dir/ones"
refused "ones" "$dir/ones"

q='"layer0.q":{"dtype":"F16","shape":[1,4,2],"data_offsets":[0,16]}'
k='"layer0.k":{"dtype":"F16","shape":[1,4,2],"data_offsets":[16,32]}'
v='"layer0.v":{"dtype":"F16","shape":[1,4,2],"data_offsets":[32,48]}'
make_file "$dir/small" "{$q,$k,$v}" 48
if ! "$demo" "$dir/small" >"$dir/out" 2>&1; then
  echo "the small file that the damaged ones are made from is refused"
  cat "$dir/out"
  failed=1
fi
make_file "$dir/no-v" "{$q,$k}" 32
refused "values missing" "$dir/no-v"
make_file "$dir/no-layers" '{"weights":{"dtype":"F16","shape":[4],"data_offsets":[0,8]}}' 8
refused "other tensors" "$dir/no-layers"
make_file "$dir/shape" "{$q,$k,\"layer0.v\":{\"dtype\":\"F16\",\"shape\":[1,4,3],\"data_offsets\":[32,48]}}" 48
refused "shape and bytes disagree" "$dir/shape"
make_file "$dir/overlap" "{$q,$k,\"layer0.v\":{\"dtype\":\"F16\",\"shape\":[1,4,2],\"data_offsets\":[16,32]}}" 32
refused "overlapping tensors" "$dir/overlap"
far=18446744073709551615
make_file "$dir/huge" "{$q,$k,\"layer0.v\":{\"dtype\":\"F16\",\"shape\":[1,4,2],\"data_offsets\":[32,$far]}}" 48
refused "offset out of range" "$dir/huge"
make_file "$dir/length" "{$q,$k,\"layer0.v\":{\"dtype\":\"F16\",\"shape\":[1,2,4],\"data_offsets\":[32,48]}}" 48
refused "lengths differ" "$dir/length"
make_file "$dir/integers" "$(echo "{$q,$k,$v}" | sed 's/F16/I16/g')" 48
refused "integers" "$dir/integers"
make_file "$dir/json" "{$q,$k,$v" 48
refused "JSON without an end" "$dir/json"
bytes='"layer0.q":{"dtype":"I8","shape":[1,4,4],"data_offsets":[0,16]}'
make_file "$dir/bytes" "{$bytes,$k,$v}" 48
refused "bytes without a scale" "$dir/bytes"
scale='"layer0.q.scale":{"dtype":"F16","shape":[1,3],"data_offsets":[48,54]}'
make_file "$dir/scale" "{$bytes,$k,$v,$scale}" 54
refused "bytes with too few scales" "$dir/scale"
make_file "$dir/first" "{\"__metadata__\":{\"layer0.first\":\"2\"},$q,$k,$v}" 48
refused "more queries than the keys leave room for" "$dir/first"
make_file "$dir/word" "{\"__metadata__\":{\"layer0.first\":\"two\"},$q,$k,$v}" 48
refused "a position that is no number" "$dir/word"

# Numbers are checked by the library, when the file has been accepted and its description printed.
make_file "$dir/nan" "{$q,$k,$v}" 32
head -c 16 /dev/zero | tr '\000' '\377' >>"$dir/nan"
"$demo" "$dir/nan" >"$dir/out" 2>"$dir/err"
status=$?
if [ "$status" -eq 0 ] || [ "$status" -ge 128 ] || [ "$(wc -l <"$dir/err")" -ne 1 ]; then
  echo "not refused as it should be: values that are not numbers (status $status)"
  cat "$dir/out" "$dir/err"
  failed=1
else
  echo "refused, values that are not numbers: $(cat "$dir/err")"
fi

refused "unknown option" --speed
refused "no rows" --rows 0
refused "rows not a number" --rows 12x
refused "option without a value" --keys
refused "no copy" --repeat 0
refused "too many copies" --repeat 1000
refused "copies of a text whose rotary base is not said" "$good" --repeat 2
refused "a rotary base that is none" --rope-base 1
make_file "$dir/yarn" "{\"__metadata__\":{\"rope_base\":\"10000\",\"rope_layout\":\"interleaved\",\"rope_scaling\":\"yarn 2\"},$q,$k,$v}" 48
refused "copies of a text whose positions are scaled" "$dir/yarn" --repeat 2
refused "drawing in no folder" --svg "$dir/there-is-no-such-folder/drawing.svg"
refused "tolerance out of range" --tolerance 2
refused "unknown instruction set" --isa abacus
refused "two files" "$good" "$good"

[ "$failed" -eq 0 ] && echo "refusals: ok"
exit "$failed"
