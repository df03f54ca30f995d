"""The HTTP face: routes that read a request, ask the control plane and answer. The rules live below, in control."""
