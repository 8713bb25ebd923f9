"""Results made visible: scores, pictures, films and the report page."""

import logging

# Where its folder in the user's home cannot be written, matplotlib takes a temporary one, and says
# so in two lines that name no mistake.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
