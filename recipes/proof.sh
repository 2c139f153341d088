#!/bin/sh
# Does a small model learn to fill in kernels? One call, eight minutes on one GPU, of which the judge has a part:
#     KERNELTUNE_SERVICE=… PYTHON=path/to/trainer/python sh recipes/proof.sh EXPORT MODEL OUT
# EXPORT is collect.sh's. A service must run (`optimize serve`); nothing is fetched. Answers and verdicts stay in OUT.
set -eu
export=$1
model=$2
out=$3
python=${PYTHON:-python}
here=$(dirname "$0")
ask="--rows ${ROWS:-48} --samples ${SAMPLES:-4} --max-tokens ${MOST:-3000}"
mkdir -p "$out"
echo "untrained";      "$python" "$here/evaluate.py" "$export" --model "$model" --out "$out/untrained.jsonl" $ask
echo "three shots";    "$python" "$here/evaluate.py" "$export" --model "$model" --shots 3 --out "$out/shots.jsonl" $ask
echo "nearest kernel"; "$python" "$here/evaluate.py" "$export" --copy --out "$out/copied.jsonl" $ask
"$python" "$here/sft.py" "$export" --model "$model" --out "$out/sft" --steps "${STEPS:-300}" --max-tokens "${MOST:-3000}"
echo "SFT";            "$python" "$here/evaluate.py" "$export" --model "$out/sft/model" --out "$out/sft.jsonl" $ask
"$python" "$here/grpo.py" "$export" --model "$out/sft/model" --out "$out/grpo" --steps "${GRPO_STEPS:-12}" --max-tokens "${MOST:-3000}"
echo "GRPO";           "$python" "$here/evaluate.py" "$export" --model "$out/grpo/model" --out "$out/grpo.jsonl" $ask
