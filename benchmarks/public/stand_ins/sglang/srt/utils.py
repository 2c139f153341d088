"""In place of SGLang's questions about the machine."""


def is_cuda():
    return True


def is_hip():
    return False
