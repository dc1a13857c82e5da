"""What is tried beyond a first answer; the same for whoever answers, with torch or without it."""

# Answers that are not accepted are tried again with more margin, step by step until they are: small steps stay closer
# than other latents do. The nearest rows of the bank may be closer still.
LADDER = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
ROWS_FIRST = 5
# Where all of that is refused: from other latents too, and from more rows of the bank.
HARDER = (0.0, 0.7, 1.5, 3.0)
RETRY_LATENTS = 3
ROWS_TRIED = 20
# For more than one answer: latents and rows of the bank for each of them, and one after the other without each of the
# first answer's changes, then also without what took its place.
LATENTS_EACH = 2
LOCKS = 2
# Log-odds beyond what a request asks for, since rounding takes some.
A_LITTLE = 0.1
# No price reaches this: what a refused candidate costs, and more the worse it is.
REFUSED = 1e6
# What it costs an answer to be hardly different from another of its row, and to be the same.
NEAR, SAME = 3.0, 1e9
# Confidence of certificates.
CONFIDENCE = 0.95
# Slack in comparing shares.
SLACK = 1e-6
