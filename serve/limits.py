"""What one request, and one worker, may hold. Every number is checked before the work it bounds."""

FORMATS = ("JPEG", "PNG", "WEBP")  # by their first bytes, in Pillow's words
MAX_BODY = 32 * 2**20  # bytes of a request body, counted while it arrives
MAX_BUFFERED = 8 * MAX_BODY  # bytes of all request bodies in one worker's memory
MAX_COMMAS = 1_000  # of one JSON body; 32 data URIs need 63, and a parser makes a hundred bytes of every further item
MAX_HEAD = 2_048  # bytes of a form's content type, and of the headers of one part
MAX_IMAGE = 10 * 2**20  # bytes of one encoded image
MAX_SCANS = 100  # of one JPEG, each a pass over all its pixels; a progressive one has about ten; thirty bytes make one
MAX_SEGMENTS = 2_000  # of one JPEG; 10 MiB of the longest are 161
MAX_CHUNKS = 10_000  # of one PNG; 10 MiB in the usual chunks of 8 KiB are 1,281
MAX_PROFILES = 8  # colour profiles of one PNG, which may have one; of a kilobyte, Pillow unfolds each to a megabyte
MAX_IMAGES = 32  # images of one request
MAX_PIXELS_IN_ALL = 200_000_000  # pixels of all images of one request, read from their headers before any is decoded
MAX_QUEUE = 512  # images that one worker has accepted and not yet answered
MAX_REQUESTS = 384  # requests of one key that a worker answers at a time; of one image each, they leave room for others
MAX_BATCH = 8  # images of one run; per-image time is flat beyond it on CPUs
MAX_NEIGHBOURS = 100  # answers to one image of a search
MAX_WAIT = 2.0  # seconds that a request may be expected to wait for others; beyond it, it is refused at once
DECODERS = 2  # threads that decode small images
LARGE_IMAGE = 1_000_000  # pixels; larger images have threads of their own, so that small ones pass them
LARGE_DECODERS = 1  # threads that decode large images; 25 megapixels with alpha take 316 MiB while they are decoded
TIMEOUT = 30.0  # seconds from the end of a request's headers to its answer
