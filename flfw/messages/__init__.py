"""Messages between server and client: tensors on the wire, the declared sharing, replies, factors."""
