"""Parts of a GPU check that end in every way a part can end."""
