"""A frozen vision-language teacher: features of images and of class names in one space, from local files only."""

from fedfeat.teacher.cache import TeacherCache, read_cache, write_cache
from fedfeat.teacher.settings import TeacherSettings
from fedfeat.teacher.teacher import Teacher, encode_all, make_teacher

__all__ = [
    "Teacher",
    "TeacherCache",
    "TeacherSettings",
    "encode_all",
    "make_teacher",
    "read_cache",
    "write_cache",
]
