"""What goes over the wire: JSON in and out, the sentences of errors, lists of what there is."""
