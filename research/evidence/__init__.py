"""Evidence at the papers' own scale: one finished cell, variant and seed after another, each in a small JSON file."""
