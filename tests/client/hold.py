"""Keep a network namespace alive until stdin ends; says ``up`` once loopback is."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys

SIOCSIFFLAGS = 0x8914
UP_AND_RUNNING = 0x1 | 0x40  # IFF_UP | IFF_RUNNING

# a new network namespace has a loopback device that is down
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", UP_AND_RUNNING))
sys.stdout.write("up\n")
sys.stdout.flush()
sys.stdin.read()
