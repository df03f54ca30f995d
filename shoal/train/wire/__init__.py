"""How processes of one job speak: memory shared on one host, framed TCP between hosts, a proof of the secret before."""
