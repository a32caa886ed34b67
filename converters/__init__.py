"""What people have → ExportedProgram → LiteRT flatbuffer: front ends and passes."""
