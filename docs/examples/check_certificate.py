"""Verify the signature of a certificate: check_certificate.py CERTIFICATE PUBLIC_KEY."""

import base64
import json
import sys
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_pem_public_key

envelope = json.loads(Path(sys.argv[1]).read_bytes())
kind, payload = envelope["payloadType"].encode(), base64.b64decode(envelope["payload"])
signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
public = load_pem_public_key(Path(sys.argv[2]).read_bytes())
public.verify(base64.b64decode(envelope["signatures"][0]["sig"]), signed)  # raises InvalidSignature
sys.stdout.write("signed: " + json.loads(payload)["subject"][0]["digest"]["sha256"] + "\n")
