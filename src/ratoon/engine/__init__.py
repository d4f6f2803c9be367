"""The engine: one thread, one model, one context."""

import os

# Read by OpenMP's runtime when llama.cpp loads it. Threads that spin at barriers stall each other
# as soon as another program wants a core, as an agent's compilers and tests do: beside one busy
# process on two cores, decoding fell from 42 to 0.4 tokens a second; with sleeping threads it is 22
# (and 31 to 35 instead of 42 on an idle machine, with a model so small that barriers are all it
# does).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
