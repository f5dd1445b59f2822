"""Tables of a user: reading them, the kinds of their columns, the plan of a federation's columns, and a listing."""
