"""How fast, compared with what, stored how: measure, peers, advise."""
