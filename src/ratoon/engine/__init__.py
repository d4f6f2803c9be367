"""The engine: one thread, one model, one context."""

import os

# Read by OpenMP's runtime when llama.cpp loads it. Threads that spin at barriers stall each other
# as soon as another program wants a core, as an agent's compilers and tests do: beside one busy
# process on two cores, decoding fell from 42 to 0.4 tokens a second; with sleeping threads it is
# 22. A few turns before they sleep catch most barriers on an idle machine (SmolLM2 on two cores,
# one and eight sequences: 51 and 116 tokens a second without, 65 and 140 with them) and cost less
# beside a busy process (39 and 67 without, 32 and 68 with them) than a thousand do (24 and 72).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "200")
